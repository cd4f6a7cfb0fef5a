# SPDX-License-Identifier: Apache-2.0
# cpack: a tarball that runs wherever it is unpacked, and a Debian package. scripts/package makes both, and the wheel.
# Size: six architectures take five to six and a half times the device code of one (three pairs, compiled for all). With 64 pairs that is
# an estimated 35 to 45 MB of it beside 13 MB of the rest, and about 15 MB packed; a package is to stay within 200 MB.
set(CPACK_PACKAGE_NAME aisp)
set(CPACK_PACKAGE_VENDOR "The aisp authors")
# An address that cannot exist (RFC 2606), because there is none to write to; scripts/package takes that of whoever makes the package.
set(CPACK_PACKAGE_CONTACT "The aisp authors <noreply@aisp.invalid>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "Benchmark suite of GPU and host optimizations")
set(CPACK_PACKAGE_DESCRIPTION
    "Pairs of baseline and optimized kernels for NVIDIA GPUs and their hosts, timed side by side and checked against a float64 reference. Host pairs run without a GPU; GPU pairs need the NVIDIA driver, 580 or newer.")
set(CPACK_RESOURCE_FILE_LICENSE "${PROJECT_SOURCE_DIR}/LICENSE")
set(CPACK_SYSTEM_NAME "linux-${CMAKE_SYSTEM_PROCESSOR}")
set(CPACK_GENERATOR TGZ DEB)
set(CPACK_STRIP_FILES ON)
# Every core: compressing is what takes the time.
set(CPACK_THREADS 0)

set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
# Dependencies are the linked libraries: glibc and libgcc_s. The driver, cuBLAS, CUPTI and the like are opened at run time where
# they are, and aisp says what is missing.
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SUGGESTS "libcublas-13-0, cuda-cupti-13-0, cuda-nvrtc-13-0")
include(CPack)
