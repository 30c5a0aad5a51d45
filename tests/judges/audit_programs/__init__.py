"""Programs by which the audit is judged."""
