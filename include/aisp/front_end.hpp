// SPDX-License-Identifier: Apache-2.0
// The name of the inline namespace around what has lambdas in a header. nvcc's front end writes `member` as `(this)->member`
// before the host compiler sees it, which changes the order of a lambda's captures: two objects of one mangled name, of which the
// linker keeps any, would not agree on where a capture lies. With a name for each front end there are no two of one name.
#pragma once

#ifdef __CUDACC__
#define AISP_FRONT_END by_nvcc
#else
#define AISP_FRONT_END by_host_compiler
#endif
