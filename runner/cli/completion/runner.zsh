# Completion of `runner` and `python -m runner`; other uses of python are completed as before,
# also that of a runner.py here, which that would start.

_runner_candidates() {  # its arguments are the command that runs us
    local -x COMP_LINE="${(j: :)words[1,CURRENT-1]} $PREFIX"
    local -a candidates
    candidates=(${(f)"$("$@" --shell-completion query=zsh 2>/dev/null)"})
    (( $#candidates )) || { _files; return }
    compadd -S '' -- ${(M)candidates:#*[=./]}
    compadd -- ${candidates:#*[=./]}
}

_runner() {
    _runner_candidates "${${(Q)words[1]}/#\~/$HOME}"
}

_runner_python() {
    if (( CURRENT > 3 )) && [[ "$words[2] $words[3]" == '-m runner' && ! -e runner.py ]]; then
        _runner_candidates "${${(Q)words[1]}/#\~/$HOME}" -m runner
    else
        ${_runner_before:-_default} "$@"
    fi
}

(( $+functions[compdef] )) || { autoload -Uz compinit && compinit -i }
[[ $_comps[python] == _runner_python ]] || typeset -g _runner_before=$_comps[python]
compdef _runner runner
compdef _runner_python PYTHONS
