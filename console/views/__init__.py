"""Pure views: what each place shows of a picture, as lines and tables."""
