"""Judges of written text: a language model with a rubric, or the likelihood of public text.

A judge sees public and released text only, so what it decides is post-processing of releases and
costs nothing.
"""
