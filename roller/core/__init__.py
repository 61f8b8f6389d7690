"""What every floor may use and no device is in: dtypes, files, validation, tables, this processor."""
