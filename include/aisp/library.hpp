// SPDX-License-Identifier: Apache-2.0
// Libraries that are opened at run time by what needs them, so that aisp starts on machines without them.
#pragma once
#include <aisp/needs.hpp>

#include <string>
#include <vector>

namespace aisp {

class SharedLibrary {
 public:
  // Opened once per process and kept. Throws Unsupported("libcublas.so.13 not found; ...") naming the way round it.
  static const SharedLibrary& open(Library library);
  static bool available(Library library) noexcept { return !locate(library).empty(); }
  // Where it would be found, without opening it (opening cuBLAS can take seconds); empty when it is absent.
  static std::string locate(Library library) noexcept;

  // The address of a C function, as a pointer to a function of type F: function<decltype(cublasCreate_v2)>("cublasCreate_v2").
  // Throws Unsupported when the library has no such symbol (an older version).
  template <class F>
  F* function(const char* name) const {
    return reinterpret_cast<F*>(symbol(name));
  }
  bool has(const char* name) const noexcept;

  Library library() const { return library_; }
  const std::string& path() const { return path_; }            // the file that was loaded
  const std::string& file_name() const { return file_name_; }  // the name it was found by: "libcublas.so.13"

 private:
  SharedLibrary(Library library, void* handle, std::string file_name);
  void* symbol(const char* name) const;

  Library library_;
  void* handle_;
  std::string file_name_;
  std::string path_;
};

inline constexpr Library last_library = Library::cutlass;

// Names that a library may be installed by, best first: {"libcublas.so.13", "libcublas.so.12"}.
std::vector<std::string> file_names(Library library);
// Where they are looked for beside the loader's own places, in order. AISP_LIBRARY_PATH comes before the loader's.
std::vector<std::string> library_folders();

}  // namespace aisp
