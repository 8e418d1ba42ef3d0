"""Fuzzing with damaged bytes: seeds, mutations, parsers under test, and the loop that searches for unexpected exceptions."""
