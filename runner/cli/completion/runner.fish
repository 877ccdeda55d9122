# Completion of `runner` and `python -m runner`; other uses of python are completed as before,
# also that of a runner.py here, which that would start.

function __runner_is_module
    set -l words (commandline -opc)
    test "$words[2..3]" = '-m runner' -a ! -e runner.py
end

function __runner_candidates
    set -l words (commandline -opc)
    set -l command (string replace -r '^~' $HOME -- $words[1])
    __runner_is_module; and set -a command -m runner
    set -lx COMP_LINE (string join ' ' -- $words (commandline -ct))
    set -l candidates ($command --shell-completion query=fish 2>/dev/null)
    if test -n "$candidates"
        string join \n -- $candidates
    else
        __fish_complete_path (commandline -ct)
    end
end

complete -c runner -f -a '(__runner_candidates)'
for name in PYTHONS
    complete -c $name -n __runner_is_module -f -a '(__runner_candidates)'
end
