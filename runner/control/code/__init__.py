"""The user's code: work tree, snapshot, push."""
