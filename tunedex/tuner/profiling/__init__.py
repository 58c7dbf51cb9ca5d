"""Finds the operators of somebody's program that there are kernels for: `recorder` and `bootstrap` run inside the
program, `program` starts it, `profile` reads what they saw as problems."""
