"""The command line: parameters in, one library call, one view out."""
