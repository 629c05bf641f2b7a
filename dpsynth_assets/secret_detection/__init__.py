"""Finds secrets in private text: detectors, findings, and the measured share of missed secrets."""
