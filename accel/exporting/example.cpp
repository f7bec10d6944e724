// A loop of your own around this bundle's policy, with onnxruntime's C++ API (headers and library from its releases):
//     g++ -std=c++17 example.cpp -o ../example -lonnxruntime && ../example model.onnx
#include <onnxruntime_cxx_api.h>

#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

int main(int count, char **arguments) {
    Ort::Env environment(ORT_LOGGING_LEVEL_WARNING, "policy");
    Ort::SessionOptions options;
    options.SetIntraOpNumThreads(1);
    options.AddConfigEntry("session.disable_quant_qdq", "1");
    Ort::Session session(environment, count > 1 ? arguments[1] : "model.onnx", options);
    Ort::AllocatorWithDefaultOptions allocator;
    std::vector<Ort::AllocatedStringPtr> names;  // keep the texts alive
    std::vector<const char *> inputs, outputs;
    std::vector<Ort::Value> values;  // the observation, then the recurrent state, all zero at the start of an episode
    for (size_t i = 0; i < session.GetInputCount(); i++) {
        inputs.push_back(names.emplace_back(session.GetInputNameAllocated(i, allocator)).get());
        Ort::TypeInfo info = session.GetInputTypeInfo(i);
        std::vector<int64_t> shape = info.GetTensorTypeAndShapeInfo().GetShape();
        ONNXTensorElementDataType type = info.GetTensorTypeAndShapeInfo().GetElementType();
        shape[0] = 1;
        Ort::Value &value = values.emplace_back(Ort::Value::CreateTensor(allocator, shape.data(), shape.size(), type));
        size_t bytes = value.GetTensorTypeAndShapeInfo().GetElementCount();
        bytes *= type == ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8 ? 1 : sizeof(float);
        std::memset(value.GetTensorMutableRawData(), 0, bytes);
    }
    for (size_t i = 0; i < session.GetOutputCount(); i++)
        outputs.push_back(names.emplace_back(session.GetOutputNameAllocated(i, allocator)).get());
    for (int step = 0; step < 10; step++) {
        // write your observation here: values[0].GetTensorMutableData<float>(), or <uint8_t> for images
        std::vector<Ort::Value> results = session.Run(Ort::RunOptions{nullptr}, inputs.data(), values.data(),
                                                      inputs.size(), outputs.data(), outputs.size());
        size_t size = results[0].GetTensorTypeAndShapeInfo().GetElementCount();
        for (size_t i = 0; i < size; i++) std::printf("%.9g ", results[0].GetTensorData<float>()[i]);
        std::printf("\n");  // contract.json, "action", says what turns these parameters into an action
        for (size_t i = 1; i < values.size(); i++) values[i] = std::move(results[i]);  // the state of the next step
    }
    return 0;
}
