"""The command line: parameters, one library call, one view."""
