"""Shell completion: a script for each shell, which asks us for the words that may come next."""
