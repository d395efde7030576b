import { parseApiAddress } from '../api/grpc/address.ts'
import { errorOf } from '../base/thrown.ts'
import { API_TLS_FLAGS } from './api-flags.ts'
import type { ApiConfig, ApiTlsConfig } from './config.ts'
import type { FlagReader } from './flag-reader.ts'

/** Of `kprobe run`. */
export function readApi(reader: FlagReader): ApiConfig | undefined {
  const tls = readApiTls(reader)
  const address = readApiAddress(reader, 'api')
  return address === undefined ? undefined : { address, tls }
}

/** Undefined when it was not given. */
export function readApiAddress(reader: FlagReader, flag: string): string | undefined {
  const text = reader.text(flag) ?? ''
  if (text === '') return undefined
  try {
    parseApiAddress(text)
  } catch (error) {
    reader.fail(`--${flag}`, errorOf(error).message)
  }
  return text
}

/** Three files, or none. */
export function readApiTls(reader: FlagReader): ApiTlsConfig | undefined {
  const files = API_TLS_FLAGS.map(({ name }) => reader.text(name) ?? '')
  const [certFile = '', keyFile = '', clientCaFile = ''] = files
  if (files.every(file => file === '')) return undefined
  for (const [index, { name }] of API_TLS_FLAGS.entries())
    if (files[index] === '') reader.fail(`--${name}`, 'is missing: a server with TLS needs all three')
  return { certFile, keyFile, clientCaFile }
}
