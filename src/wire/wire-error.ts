/** Bytes that are not what they are to be; the stream they came from cannot be used any further. */
export class WireError extends Error {
  override readonly name = 'WireError'
}
