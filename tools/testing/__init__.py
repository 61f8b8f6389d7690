"""Plugins of pytest that decide which tests run: shards, what a change reaches, a limit of time, the last green run."""
