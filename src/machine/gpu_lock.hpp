// SPDX-License-Identifier: Apache-2.0
// One run per GPU at a time, whoever runs it.
#pragma once
#include <filesystem>
#include <functional>
#include <string>

#include "base/system/lock.hpp"

namespace aisp::machine {

// AISP_LOCK_DIRECTORY, else /tmp/aisp-locks, which all users share (a folder per user, like XDG_RUNTIME_DIR, would let two users
// measure on one GPU at the same time; it is the last resort).
std::filesystem::path lock_directory();
std::filesystem::path gpu_lock_path(const std::string& uuid);

// Throws base::Error (Exit::unfit) naming the holder when the GPU is still taken after `timeout_s`, and Exit::interrupted when
// `give_up` ended the wait.
base::FileLock lock_gpu(const std::string& uuid, const std::string& purpose, double timeout_s = 0,
                        const std::function<bool()>& give_up = {});

}  // namespace aisp::machine
