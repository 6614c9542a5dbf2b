"""Metrics and logs. They only listen to observations; nothing here is ever asked for a decision."""
