// SPDX-License-Identifier: Apache-2.0
// The code of the pairs in this executable: digests, to tell whether a result is of the same code, and the files, for
// reports to show. Written at build time by cmake/code.
#pragma once
#include <span>
#include <string>
#include <string_view>

namespace aisp::pair {

struct Entry;

// SHA-256 of a pair's host code, by its source without comments and layout, and of its instructions for one architecture.
struct CodeDigest {
  int sm = 0;           // compute capability times ten; 0 if nothing runs on a GPU
  bool is_ptx = false;  // PTX, which the driver compiles if there are no instructions for a GPU
  std::string_view digest;
};

// A source file as it was at build time.
struct SourceFile {
  std::string_view path;  // relative to the source tree
  const char* begin;      // its text, a NUL and the lines about its functions, packed by raw deflate
  const char* end;

  struct Content {
    std::string text, functions;  // the latter as cmake/code/variant_code.py wrote them
  };
  Content content() const;
};
// Kernels that are linked at run time.
struct LinkableKernels {
  std::string_view path;  // of their source, below the folder of chapters
  const char* begin;      // a fatbin
  const char* end;
};

struct Code {
  std::span<const CodeDigest> digests;
  std::span<const SourceFile> files;  // the pair's own, then the chapters' headers that it includes
};

// Returns the code of all pairs in the order of the registry; generated.
std::span<const Code> linked_code();
std::span<const LinkableKernels> linked_kernels();  // generated, too
// Returns the code of one entry; empty for an entry that is not of the registry.
Code code_of(const Entry& entry);

// Returns the digest of the code that the driver chooses for a GPU of this compute capability (times ten); 0: no GPU is known,
// the first there is.
std::string_view digest_on(const Code& code, int sm);
// Whether the code has this digest for any architecture in this executable.
bool has_digest(const Code& code, std::string_view digest);

}  // namespace aisp::pair
