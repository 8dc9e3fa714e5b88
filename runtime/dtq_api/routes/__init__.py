"""The endpoints of contract §11, one module per thing they are about."""
