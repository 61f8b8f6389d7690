"""Construction shared by all kinds of device: growth by data reuse, scale-up, reduction steps, forms, and options."""
