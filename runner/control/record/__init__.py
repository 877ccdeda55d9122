"""Run folders on the controller, and downloads into them."""
