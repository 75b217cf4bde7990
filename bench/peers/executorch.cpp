// A program of ExecuTorch, called without its Python, on one thread; its observation is written where it is read.
#include <cstring>
#include <executorch/extension/module/module.h>

namespace executorch::extension::threadpool { // its header is not in the wheel
class ThreadPool {
  public:
    bool _unsafe_reset_threadpool(uint32_t threads);
};
ThreadPool *get_threadpool();
}

struct Policy {
    explicit Policy(const char *path) : module(path) {}
    executorch::extension::Module module;
    executorch::runtime::Method *method = nullptr;
    float *observation = nullptr;
    size_t size = 0;
    int outputs = 0;
};

// NULL if the file cannot be opened.
extern "C" void *executorch_open(const char *path, int size, int outputs)
{
    executorch::extension::threadpool::get_threadpool()->_unsafe_reset_threadpool(1);
    auto *policy = new Policy(path);
    const auto method = policy->module.method("forward");
    if (!method.ok()) return nullptr;
    policy->method = *method;
    policy->observation = policy->method->mutable_input(0).toTensor().mutable_data_ptr<float>();
    policy->size = size * sizeof(float);
    policy->outputs = outputs;
    return policy;
}

extern "C" int executorch_decide(void *self, const float *observation, float *)
{
    auto *policy = static_cast<Policy *>(self);
    std::memcpy(policy->observation, observation, policy->size);
    if (policy->method->execute() != executorch::runtime::Error::Ok) return -1;
    const float *y = policy->method->get_output(0).toTensor().const_data_ptr<float>();
    int best = 0;
    for (int i = 1; i < policy->outputs; i++)
        if (y[i] > y[best]) best = i;
    return best;
}
