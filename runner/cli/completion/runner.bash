# Completion of `runner` and `python -m runner`; other uses of python are completed as before,
# also that of a runner.py here, which that would start.

_runner_candidates() {  # its arguments are the command that runs us
    local line=${COMP_LINE:0:COMP_POINT} breaks=${COMP_WORDBREAKS//[^=:]/} word split_off= candidate
    word=${line##*[[:space:]]}
    [[ $breaks ]] && split_off=${word%"${word##*[$breaks]}"}  # bash completes what comes after it
    COMPREPLY=()
    while IFS= read -r candidate; do
        [[ $candidate == *[=./] ]] || candidate+=' '
        COMPREPLY+=("${candidate#"$split_off"}")
    done < <(COMP_LINE=$line "$@" --shell-completion query=bash 2>/dev/null)
    compopt -o nospace
}

_runner() {
    _runner_candidates "${1/#\~/$HOME}"
}

_runner_python() {
    local name=${1##*/}
    if ((COMP_CWORD > 2)) && [[ ${COMP_WORDS[1]} == -m && ${COMP_WORDS[2]} == runner && ! -e runner.py ]]; then
        _runner_candidates "${1/#\~/$HOME}" -m runner
    elif [[ ${_runner_before[$name]} ]]; then
        "${_runner_before[$name]}" "$@"
    elif [[ $(complete -p -D 2>/dev/null) =~ -F\ ([^ ]+) ]]; then
        # The default function completes the word, or loads a completion for python (status 124).
        complete -r "$name"
        "${BASH_REMATCH[1]}" "$@"
        local status=$?
        _runner_wrap "$name"
        if ((status == 124)) && [[ ${_runner_before[$name]} ]]; then
            "${_runner_before[$name]}" "$@"
        fi
    fi
}

_runner_wrap() {  # put ours before the completion function that a python has
    local old
    old=$(complete -p "$1" 2>/dev/null)
    if [[ $old =~ -F\ ([^ ]+) ]]; then
        [[ ${BASH_REMATCH[1]} == _runner_python ]] || _runner_before[$1]=${BASH_REMATCH[1]}
    elif [[ $old ]]; then
        return  # completed without a function
    fi
    complete -o bashdefault -o default -F _runner_python "$1"
}

declare -gA _runner_before
complete -o bashdefault -o default -F _runner runner
for _runner_name in PYTHONS; do _runner_wrap "$_runner_name"; done
unset _runner_name
