"""Start of a node's torchrun whose ranks are forks of one process; see `fork_server`.

    PYTHON -u preload.py MODULES HIDE PROGRAM LAUNCHER_MODULE [ARG...]

MODULES are to be imported, HIDE are variables of torchrun alone, both with commas between them;
PROGRAM is the path of the ranks' script, or `-m` and the name of a module in one word. A rank's
program runs at the level of this module, as near as can be to where it runs in a fresh process.
"""

import importlib
import os
import runpy
import sys

if __name__ == "__main__":
    own_module = sys.modules["__main__"]  # keeps this namespace when another takes its name
    folder = os.path.dirname(os.path.abspath(__file__))
    if sys.path[0] != folder:  # with `-P`
        sys.path.insert(0, folder)
    preload = importlib.import_module("runner_preload.fork_server")
    del sys.path[0]
    for name in [name for name in sys.modules if name.startswith("runner_preload")]:
        del sys.modules[name]  # a program sees nothing of us
    module, path, source = preload.main(sys.argv[1:])
    try:
        if module:
            runpy._run_module_as_main(module)  # type: ignore[attr-defined]  # noqa: SLF001
        else:
            code = compile(source, path, "exec", dont_inherit=True)
            exec(code, vars(sys.modules["__main__"]))  # noqa: S102 (a program of the user's)
    except BaseException:
        preload.forked_rank.hide_frames((__file__, preload.__file__))
        raise
