"""The notebook's words for the workbench: ``%load_ext forge_nb`` brings them."""
