// What the trainer calls of the session library; session.cpp, threads.cpp, optimizer.cpp and crossover.cpp say what each does.
#pragma once

#include <cstdint>

extern "C" {
void* apportion_open(const char* path, int* error);
void apportion_close(void* handle);
const char* apportion_error_name(int error);
int64_t apportion_inputs(void* handle);
int apportion_run(void* handle, void* threads, int64_t count, void** data, const int32_t* kinds, const int32_t* ranks,
                  const int32_t* sizes);
void* apportion_output(void* handle, int64_t i, int64_t* elements, int32_t* is_integer);
void* apportion_threads_open(int others);
void apportion_threads_close(void* threads);
void apportion_sgd(void* threads, float* value, const float* gradient, float* velocity, const uint8_t* mask, int64_t count,
                   float lr, float momentum, float decay, int nesterov);
void apportion_adam(void* threads, float* value, const float* gradient, float* mean, float* square, const uint8_t* mask,
                    int64_t count, double step, float lr, float beta1, float beta2, float eps, float decay, int decoupled);
void apportion_add_squares(float* sums, const float* gradient, int64_t count);
double apportion_sum_of_squares(const float* gradient, int64_t count);
void apportion_keep(float* gradient, const uint8_t* mask, int64_t count);
void apportion_scale(float* gradient, float factor, int64_t count);
double apportion_crossover(int kind);
}
