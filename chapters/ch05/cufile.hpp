// SPDX-License-Identifier: Apache-2.0
// cuFile, reads from a file to device memory, opened at run time: nothing of it is linked, and none of its headers is needed.
// Types and numbers are those of cufile.h 1.20, as far as they are used.
#pragma once
#include <stdlib.h>
#include <sys/types.h>
#include <aisp/check.hpp>
#include <aisp/library.hpp>
#include <aisp/opened.hpp>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <stdexcept>
#include <string>

namespace aisp::ch05 {

namespace cufile {

struct Error {  // CUfileError_t
  int code;     // 0: success, else above 5000
  int cuda;     // of the driver, where the code is 5011
};
struct Description {  // CUfileDescr_t
  int type;           // 1: a descriptor of Linux
  union {
    int descriptor;
    void* handle;
  };
  const void* operations;
};
struct Properties {  // CUfileDrvProps_t
  struct {
    unsigned major, minor;
    std::size_t poll_threshold, most_direct_bytes;
    unsigned file_systems, control;
  } nvidia_fs;
  unsigned features, cache, buffer_cache, pinned, batch, batch_timeout;
  std::byte more[256];  // of later versions
};
using Handle = void*;

}  // namespace cufile

// The library's driver, open as long as this lives.
class CuFile {
 public:
  static constexpr Library library = Library::cufile;

  // The library writes a log to the working folder unless it is told another place.
  explicit CuFile(const std::filesystem::path& log_folder) {
    ::setenv("CUFILE_LOGFILE_PATH", (log_folder / "cufile.log").c_str(), 0);
    call("cuFileDriverOpen");
    call("cuFileDriverGetProperties", &properties_);
  }
  ~CuFile() { function<cufile::Error()>("cuFileDriverClose_v2")(); }
  CuFile(const CuFile&) = delete;
  CuFile& operator=(const CuFile&) = delete;

  // Whether it has a way past the host's memory: nvidia-fs, or PCIe transfers between the drive and the GPU (P2PDMA).
  bool has_direct_path() const {
    constexpr unsigned p2p = 1u << 4;
    return properties_.nvidia_fs.major > 0 || (properties_.features & p2p) != 0;
  }

  // Throws Unsupported where the call says no: what it lacks is a matter of the machine.
  template <class... Arguments>
  static void call(const char* name, Arguments... arguments) {
    if (const cufile::Error error = function<cufile::Error(Arguments...)>(name)(arguments...); error.code != 0)
      throw Unsupported{
          std::string{name} + " refuses with error " + std::to_string(error.code) +
          "; cuFile needs nvidia-fs or the compatibility mode of cufile.json, and udev's database to know a file's disk"};
  }
  template <class F>
  static F* function(const char* name) {
    return SharedLibrary::open(Library::cufile).function<F>(name);
  }

 private:
  cufile::Properties properties_{};
};

// An open file, and the device memory that it is read to.
class CuFileReads {
 public:
  CuFileReads(int file, void* memory, std::size_t bytes) : memory_{memory} {
    cufile::Description description{.type = 1, .descriptor = file, .operations = nullptr};
    CuFile::call("cuFileHandleRegister", &handle_, &description);
    CuFile::call("cuFileBufRegister", static_cast<const void*>(memory), bytes, 0);
  }
  ~CuFileReads() {
    CuFile::function<cufile::Error(const void*)>("cuFileBufDeregister")(memory_);
    CuFile::function<void(cufile::Handle)>("cuFileHandleDeregister")(handle_);
  }
  CuFileReads(const CuFileReads&) = delete;
  CuFileReads& operator=(const CuFileReads&) = delete;

  // Returns when the bytes from `offset` of the file are at `offset` of the memory.
  void read(std::size_t offset, std::size_t bytes) const {
    for (std::size_t done = 0; done < bytes;) {
      const ssize_t part =
          read_(handle_, memory_, bytes - done, static_cast<off_t>(offset + done), static_cast<off_t>(offset + done));
      if (part <= 0)
        throw std::runtime_error{"cuFileRead returns " + std::to_string(part) +
                                 (part == -1 ? std::string{": "} + std::strerror(errno) : "")};
      done += static_cast<std::size_t>(part);
    }
  }

 private:
  void* memory_;
  cufile::Handle handle_ = nullptr;
  ssize_t (*read_)(cufile::Handle, void*, std::size_t, off_t,
                   off_t) = CuFile::function<ssize_t(cufile::Handle, void*, std::size_t, off_t, off_t)>("cuFileRead");
};

}  // namespace aisp::ch05
