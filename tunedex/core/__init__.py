"""Value types and their canonical form: what a device, a problem, a config and an answer are.

Depends on nothing: neither on another room nor on any installed package.
"""
