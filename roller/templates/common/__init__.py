"""What pools of any kind share: growth by data reuse, scale-up, reduction steps, forms, options."""
