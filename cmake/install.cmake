# What `make install` puts where: command, both libraries, header, pkg-config file, man page.
set(ACCRUE_PC_PRIVATE "-lpthread -lm")
if(ACCRUE_ONEDNN)
  string(PREPEND ACCRUE_PC_PRIVATE "-ldnnl -lgomp ")
endif()
cmake_path(APPEND ACCRUE_PC_LIBDIR "\${prefix}" "${CMAKE_INSTALL_LIBDIR}")
cmake_path(APPEND ACCRUE_PC_INCLUDEDIR "\${prefix}" "${CMAKE_INSTALL_INCLUDEDIR}")
if(ACCRUE_HAS_MPI)
  list(JOIN MPI_C_LIBRARIES " " libraries)
  string(PREPEND ACCRUE_PC_PRIVATE "${libraries} ")
endif()

# The prefix may be chosen as late as `cmake --install --prefix`, so the file is made then.
install(CODE "set(PROJECT_VERSION \"${PROJECT_VERSION}\")
set(ACCRUE_PC_PRIVATE \"${ACCRUE_PC_PRIVATE}\")
set(ACCRUE_PC_LIBDIR \"\\${ACCRUE_PC_LIBDIR}\")
set(ACCRUE_PC_INCLUDEDIR \"\\${ACCRUE_PC_INCLUDEDIR}\")
configure_file(\"${CMAKE_SOURCE_DIR}/cmake/accrue.pc.in\" \"${CMAKE_BINARY_DIR}/accrue.pc\" @ONLY)")

set(manual ${CMAKE_BINARY_DIR}/accrue.1)
add_custom_command(OUTPUT ${manual} COMMAND accrue man > ${manual} DEPENDS accrue VERBATIM)
add_custom_target(manual ALL DEPENDS ${manual})

install(TARGETS accrue accrue_static accrue_shared)
install(FILES ${CMAKE_SOURCE_DIR}/include/accrue/accrue.h ${CMAKE_SOURCE_DIR}/include/accrue/workflow.h
  DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/accrue)
install(FILES ${CMAKE_BINARY_DIR}/accrue.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
install(FILES ${manual} DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
