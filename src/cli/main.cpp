// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <exception>
#include <filesystem>
#include <new>
#include <string>

#include "base/text.hpp"
#include "cli/command.hpp"
#include "cli/output.hpp"

// The only place that catches: one line for the reader, one exit status out of base::Exit.
int main(int argc, char** argv) {
  using aisp::base::Exit;
  try {
    return static_cast<int>(aisp::cli::run_program(argc, argv));
  } catch (const aisp::cli::ReaderGone&) {
    return aisp::cli::ReaderGone::status;
  } catch (const aisp::base::Error& error) {
    aisp::cli::note("aisp: error: " + aisp::base::one_line(error.what()));
    return static_cast<int>(error.status());
  } catch (const std::bad_alloc&) {
    std::fputs("aisp: error: out of memory\n", stderr);
    return static_cast<int>(Exit::unfit);
  } catch (const std::filesystem::filesystem_error& error) {
    std::error_code gone;
    const std::filesystem::path here = std::filesystem::current_path(gone);
    const std::string line = here.empty()
                                 ? "the present folder cannot be told (" + gone.message() + "); change into one that exists"
                                 : error.path1().string() + ": " + error.code().message();
    aisp::cli::note("aisp: error: " + aisp::base::one_line(line));
    return static_cast<int>(Exit::unfit);
  } catch (const std::exception& error) {
    aisp::cli::note("aisp: error: internal: " + aisp::base::one_line(error.what()));
    return static_cast<int>(Exit::failed);
  }
}
