"""What the model and the records say of a device: what to enlarge, and which number of its spec looks wrong."""
