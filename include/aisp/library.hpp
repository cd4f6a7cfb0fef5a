// SPDX-License-Identifier: Apache-2.0
// Libraries that are opened at run time when needed, so that aisp starts on machines without them.
#pragma once
#include <aisp/needs.hpp>

namespace aisp {

class SharedLibrary {
 public:
  // Opened once per process and kept. Throws Unsupported("libcublas.so.13 not found; ...") naming the way round it.
  static const SharedLibrary& open(Library library);
  static bool available(Library library) noexcept;

  // Returns the address of a C function, as a pointer to a function of type F:
  // function<decltype(cublasCreate_v2)>("cublasCreate_v2"). Throws Unsupported when the library has no such symbol (an older
  // version).
  template <class F>
  F* function(const char* name) const {
    return reinterpret_cast<F*>(symbol(name));
  }
  bool has(const char* name) const noexcept;

  Library library() const { return library_; }
  std::string_view path() const { return path_; }            // the file that was loaded
  std::string_view file_name() const { return file_name_; }  // the name it was found by: "libcublas.so.13"

 private:
  SharedLibrary(Library library, void* handle, const char* file_name);
  void* symbol(const char* name) const;

  Library library_;
  void* handle_;
  const char* file_name_;  // both texts live to the end of the process, as the library does
  const char* path_;
};

inline constexpr Library last_library = Library::cutlass;

}  // namespace aisp
