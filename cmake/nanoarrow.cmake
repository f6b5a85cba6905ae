# nanoarrow with its IPC reader: the system's copy when there is one, else the C sources that
# tools/setup puts under build/deps.
add_library(nanoarrow INTERFACE)
