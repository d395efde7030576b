import ipaddr from 'ipaddr.js'

/** Of the node under test: the first of each family is its primary. */
export const NODE_ADDRESSES: readonly string[] = [
  '192.168.0.2',
  '192.168.1.2',
  '2001:db8::2',
  '2001:db8:1::2',
]
/** Of the node too, towards its pods. */
export const POD_GATEWAYS: readonly string[] = ['10.255.255.254', 'fd00:10::fffe']

export function addressBytes(text: string): Uint8Array {
  return Uint8Array.from(ipaddr.parse(text).toByteArray())
}

/** RFC 5952 text of 4 or 16 bytes. */
export function addressText(bytes: Uint8Array): string {
  return ipaddr.fromByteArray([...bytes]).toString()
}

/** The same address in the one form that compares with ===. */
export function canonicalAddress(text: string): string {
  return ipaddr.parse(text).toString()
}

/** `10.0.0.1:80` or `[fd00::1]:80`. */
export function endpointText(address: string, port: number): string {
  return address.includes(':') ? `[${address}]:${port}` : `${address}:${port}`
}

interface AddressPort {
  readonly address: string
  readonly port: number
}

/** Reads what endpointText writes; the address comes out canonical. Throws on anything else. */
export function parseEndpoint(text: string): AddressPort {
  const match = /^(?:\[(.+)\]|([^:]+)):(\d+)$/.exec(text)
  const address = match?.[1] ?? match?.[2]
  if (match === null || address === undefined) throw new Error(`not ADDRESS:PORT: ${text}`)
  return { address: canonicalAddress(address), port: Number(match[3]) }
}
