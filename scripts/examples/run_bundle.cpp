/* A loop of your own in C++ around a bundle's model.onnx, with nothing but onnxruntime.

       g++ -std=c++17 -O2 run_bundle.cpp -o run_bundle -I/usr/include/onnxruntime -lonnxruntime
       ./run_bundle bundle/model.onnx < observations.txt

   A line of standard input is an observation: the numbers of each of contract.json's "inputs" but the recurrent state, one
   after the other; of an image 0 to 255, channels first, of an action mask 0 or 1. It is answered by the policy's outputs.
   An empty line begins an episode. Headers: Debian's libonnxruntime-dev, or a release of onnxruntime. */
#include <algorithm>
#include <cstdint>
#include <iostream>
#include <onnxruntime_cxx_api.h>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

int main(int, char **arguments) {
    Ort::Env environment(ORT_LOGGING_LEVEL_WARNING);
    Ort::SessionOptions options;
    options.SetIntraOpNumThreads(1);
    options.AddConfigEntry("session.disable_quant_qdq", "1"); // as contract.json says under "model"
    Ort::Session session(environment, arguments[1], options);
    Ort::AllocatorWithDefaultOptions allocator;
    for (const char *key : {"accel.observation", "accel.action"}) // names, units and bounds, as JSON
        std::cerr << session.GetModelMetadata().LookupCustomMetadataMapAllocated(key, allocator).get() << "\n";
    std::vector<std::string> names;
    std::vector<const char *> inputs, outputs;
    std::vector<Ort::Value> values;
    const size_t count = session.GetInputCount(), results = session.GetOutputCount();
    for (size_t i = 0; i < count + results; i++)
        names.emplace_back(i < count ? session.GetInputNameAllocated(i, allocator).get()
                                     : session.GetOutputNameAllocated(i - count, allocator).get());
    for (size_t i = 0; i < count + results; i++) (i < count ? inputs : outputs).push_back(names[i].c_str());
    for (size_t i = 0; i < count; i++) { // one row each, of floats or bytes; the last ones are the recurrent state
        const auto type = session.GetInputTypeInfo(i);
        const auto tensor = type.GetTensorTypeAndShapeInfo();
        auto shape = tensor.GetShape();
        shape[0] = 1;
        values.push_back(Ort::Value::CreateTensor(allocator, shape.data(), shape.size(), tensor.GetElementType()));
    }
    const size_t observed = count - (results - 1);
    const auto data = [](Ort::Value &value) { return value.GetTensorMutableData<float>(); };
    const auto size = [](const Ort::Value &value) { return value.GetTensorTypeAndShapeInfo().GetElementCount(); };
    const auto read = [](std::istream &numbers, auto *to, size_t left) {
        for (float x; left > 0 && numbers >> x; left--) *to++ = x;
        if (left > 0) throw std::invalid_argument("an observation has too few numbers");
    };
    bool first = true;
    for (std::string line; std::getline(std::cin, line); first = line.empty()) {
        if (line.empty()) continue;
        std::istringstream numbers(line);
        for (size_t i = 0; i < observed; i++)
            if (values[i].GetTensorTypeAndShapeInfo().GetElementType() == ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8)
                read(numbers, values[i].GetTensorMutableData<uint8_t>(), size(values[i]));
            else
                read(numbers, data(values[i]), size(values[i]));
        for (size_t i = observed; i < count && first; i++) std::fill_n(data(values[i]), size(values[i]), 0.0f);
        auto found = session.Run({}, inputs.data(), values.data(), count, outputs.data(), results);
        for (size_t i = observed; i < count; i++) values[i] = std::move(found[i - observed + 1]);
        std::for_each(data(found[0]), data(found[0]) + size(found[0]), [](float x) { std::cout << x << " "; });
        std::cout << std::endl; // contract.json, "action": what turns these into an action
    }
}
