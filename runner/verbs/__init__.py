"""The verbs, one file each; what they are made of is in folders."""

import pkgutil

LAUNCH = "launch"


def verb_names() -> list[str]:
    return [module.name for module in pkgutil.iter_modules(__path__) if not module.ispkg]
