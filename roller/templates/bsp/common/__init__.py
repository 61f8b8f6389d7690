"""What all templates of bulk-synchronous devices share: what a program means, how tiles grow, the price of phases."""
