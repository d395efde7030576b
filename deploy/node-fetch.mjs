// Stands for the package node-fetch in the bundle: client-node imports it for calls that kprobe never makes, and loading
// it prints a warning on Node 22 and newer (punycode).
export default (...parameters) => globalThis.fetch(...parameters)
export const { Headers, Request, Response, FormData } = globalThis
export const AbortError = Error
export const FetchError = Error
