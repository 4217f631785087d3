# Install and package config: find_package(Trireme).
