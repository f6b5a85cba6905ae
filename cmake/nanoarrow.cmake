# nanoarrow with its IPC reader: the system's copy when there is one, else the C sources that
# tools/setup puts under build/deps.
add_library(nanoarrow INTERFACE)
set(ACCRUE_DEPS "${CMAKE_SOURCE_DIR}/build/deps" CACHE PATH "Where tools/setup puts sources")

find_package(nanoarrow QUIET CONFIG)
foreach(kind "" _shared _static)
  if(TARGET nanoarrow::nanoarrow_ipc${kind} AND TARGET nanoarrow::nanoarrow${kind})
    target_link_libraries(nanoarrow INTERFACE nanoarrow::nanoarrow_ipc${kind}
      nanoarrow::nanoarrow${kind})
    message(STATUS "nanoarrow: ${nanoarrow_DIR}")
    return()
  endif()
endforeach()

set(root "${ACCRUE_DEPS}/nanoarrow-0.9.0/subprojects")
file(GLOB flatcc "${root}/flatcc-*")
if(NOT EXISTS "${root}/arrow-nanoarrow/src/nanoarrow/nanoarrow_ipc.h" OR NOT flatcc)
  message(FATAL_ERROR "nanoarrow is neither installed nor in ${ACCRUE_DEPS}; run: "
    "tools/setup nanoarrow ${ACCRUE_DEPS}")
endif()
message(STATUS "nanoarrow: ${root}")
set(src "${root}/arrow-nanoarrow/src")
set(config_dir "${CMAKE_BINARY_DIR}/nanoarrow/nanoarrow")

set(NANOARROW_VERSION 0.9.0)
set(NANOARROW_VERSION_MAJOR 0)
set(NANOARROW_VERSION_MINOR 9)
set(NANOARROW_VERSION_PATCH 0)
# A prefix of our own, so that a program may link another copy beside the library.
set(NANOARROW_NAMESPACE_DEFINE "#define NANOARROW_NAMESPACE AccrueNa")
configure_file("${src}/nanoarrow/nanoarrow_config.h.in" "${config_dir}/nanoarrow_config.h" @ONLY)

add_library(nanoarrow_bundled OBJECT
  ${src}/nanoarrow/common/array.c
  ${src}/nanoarrow/common/schema.c
  ${src}/nanoarrow/common/array_stream.c
  ${src}/nanoarrow/common/utils.c
  ${src}/nanoarrow/ipc/codecs.c
  ${src}/nanoarrow/ipc/decoder.c
  ${src}/nanoarrow/ipc/encoder.c
  ${src}/nanoarrow/ipc/reader.c
  ${src}/nanoarrow/ipc/writer.c
  ${flatcc}/src/runtime/builder.c
  ${flatcc}/src/runtime/emitter.c
  ${flatcc}/src/runtime/refmap.c
  ${flatcc}/src/runtime/verifier.c)
target_include_directories(nanoarrow_bundled SYSTEM PUBLIC "${src}"
  "${CMAKE_BINARY_DIR}/nanoarrow" "${config_dir}")
target_include_directories(nanoarrow_bundled SYSTEM PRIVATE "${flatcc}/include")
# Sums of offsets from a file may wrap in the decoder; what comes out is checked by the caller.
target_compile_options(nanoarrow_bundled PRIVATE -w -fwrapv)
set_target_properties(nanoarrow_bundled PROPERTIES C_EXTENSIONS ON)
if(ACCRUE_SANITIZE)
  target_compile_options(nanoarrow_bundled PRIVATE -fsanitize=${ACCRUE_SANITIZE}
    -fno-sanitize=alignment,signed-integer-overflow -fno-omit-frame-pointer)
endif()
add_library(nanoarrow_static STATIC $<TARGET_OBJECTS:nanoarrow_bundled>)
target_include_directories(nanoarrow SYSTEM INTERFACE "${src}" "${CMAKE_BINARY_DIR}/nanoarrow"
  "${config_dir}")
target_link_libraries(nanoarrow INTERFACE nanoarrow_static)
