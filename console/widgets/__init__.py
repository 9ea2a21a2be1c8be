"""What screens are made of: they draw values of ``console.shown``, and know nothing of the cluster."""
