"""Tunedex."""
