import {
  generateKeyPairSync,
  type KeyObject,
  type KeyPairKeyObjectResult,
  randomBytes,
  sign,
} from 'node:crypto'
import { isIPv4, isIPv6 } from 'node:net'

/**
 * Certificates for tests, made when the test runs: X.509 v3 (RFC 5280) with P-256 keys, written in DER by hand, so that
 * nothing expires in the repository and no tool has to be installed.
 */
export interface Authority {
  readonly caPem: string
  /** A certificate signed by this authority, with its key. */
  issue(options?: IssueOptions): KeyPair
}

export interface KeyPair {
  readonly certPem: string
  readonly keyPem: string
}

interface IssueOptions {
  /** CN; the user's name in a client certificate. */
  readonly commonName?: string
  /** O; the user's groups in a client certificate. */
  readonly organizations?: readonly string[]
  /** Subject alternative names: DNS names and IP addresses. */
  readonly names?: readonly string[]
  /** Seconds from now; negative is in the past. */
  readonly fromSeconds?: number
  readonly untilSeconds?: number
  /** Its own; of P-256 unless told otherwise. */
  readonly keys?: KeyPairKeyObjectResult
}

/** Signs for 127.0.0.1, ::1 and localhost unless told otherwise, from an hour ago until an hour from now. */
export function createAuthority(
  commonName = 'test authority',
  validity: Pick<IssueOptions, 'untilSeconds'> = {},
): Authority {
  const { privateKey, publicKey } = generateKeyPairSync('ec', { namedCurve: 'P-256' })
  const subject = { commonName, organizations: [] }
  const signing = { subject, issuer: subject, publicKey, signer: privateKey, authority: true }
  const self = certificate({ ...signing, ...validity })
  return {
    caPem: pem('CERTIFICATE', self),
    issue(options = {}) {
      const pair = options.keys ?? generateKeyPairSync('ec', { namedCurve: 'P-256' })
      const issued = certificate({
        ...options,
        subject: {
          commonName: options.commonName ?? 'test server',
          organizations: options.organizations ?? [],
        },
        issuer: subject,
        publicKey: pair.publicKey,
        signer: privateKey,
        authority: false,
      })
      const keyPem = pair.privateKey.export({ type: 'pkcs8', format: 'pem' })
      return { certPem: pem('CERTIFICATE', issued), keyPem: String(keyPem) }
    },
  }
}

interface Subject {
  readonly commonName: string
  readonly organizations: readonly string[]
}

interface Content extends IssueOptions {
  readonly subject: Subject
  readonly issuer: Subject
  readonly publicKey: KeyObject
  readonly signer: KeyObject
  readonly authority: boolean
}

const ECDSA_WITH_SHA256 = [0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, 0x02]
const COMMON_NAME = [0x55, 0x04, 0x03]
const ORGANIZATION = [0x55, 0x04, 0x0a]
const SUBJECT_ALT_NAME = [0x55, 0x1d, 0x11]
const BASIC_CONSTRAINTS = [0x55, 0x1d, 0x13]
const HOUR_SECONDS = 3600
const LOOPBACK_NAMES = ['localhost', '127.0.0.1', '::1']

function certificate(content: Content): Buffer {
  const body = toBeSigned(content)
  const signature = sign('sha256', body, content.signer)
  return sequence(body, signatureAlgorithm(), tagged(0x03, Buffer.from([0]), signature))
}

function toBeSigned(content: Content): Buffer {
  const { fromSeconds = -HOUR_SECONDS, untilSeconds = HOUR_SECONDS } = content
  return sequence(
    tagged(0xa0, integer(Buffer.from([2]))),
    integer(Buffer.concat([Buffer.from([1]), randomBytes(15)])),
    signatureAlgorithm(),
    distinguishedName(content.issuer),
    sequence(time(fromSeconds), time(untilSeconds)),
    distinguishedName(content.subject),
    content.publicKey.export({ type: 'spki', format: 'der' }),
    tagged(0xa3, sequence(content.authority ? authorityExtension() : namesExtension(content))),
  )
}

function authorityExtension(): Buffer {
  const critical = tagged(0x01, Buffer.from([0xff]))
  return sequence(identifier(BASIC_CONSTRAINTS), critical, tagged(0x04, sequence(critical)))
}

function namesExtension({ names = LOOPBACK_NAMES }: Content): Buffer {
  return sequence(identifier(SUBJECT_ALT_NAME), tagged(0x04, sequence(...names.map(alternativeName))))
}

function alternativeName(name: string): Buffer {
  if (isIPv4(name)) return tagged(0x87, Buffer.from(name.split('.').map(Number)))
  if (isIPv6(name)) return tagged(0x87, ipv6Bytes(name))
  return tagged(0x82, Buffer.from(name, 'ascii'))
}

function ipv6Bytes(text: string): Buffer {
  const [head = '', tail = ''] = text.split('::')
  const groups = (half: string): string[] => (half === '' ? [] : half.split(':'))
  const missing = 8 - groups(head).length - groups(tail).length
  const all = [...groups(head), ...Array.from({ length: missing }, () => '0'), ...groups(tail)]
  return Buffer.from(all.map(group => group.padStart(4, '0')).join(''), 'hex')
}

function distinguishedName({ commonName, organizations }: Subject): Buffer {
  const part = (type: readonly number[], text: string): Buffer =>
    tagged(0x31, sequence(identifier(type), tagged(0x0c, Buffer.from(text, 'utf8'))))
  return sequence(...organizations.map(name => part(ORGANIZATION, name)), part(COMMON_NAME, commonName))
}

function time(secondsFromNow: number): Buffer {
  const iso = new Date(Date.now() + secondsFromNow * 1000).toISOString()
  // GeneralizedTime: YYYYMMDDHHMMSSZ.
  return tagged(0x18, Buffer.from(`${iso.slice(0, 19).replace(/[-T:]/g, '')}Z`, 'ascii'))
}

function signatureAlgorithm(): Buffer {
  return sequence(identifier(ECDSA_WITH_SHA256))
}

function identifier(bytes: readonly number[]): Buffer {
  return tagged(0x06, Buffer.from(bytes))
}

/** `bytes` begin below 0x80: the number is positive. */
function integer(bytes: Buffer): Buffer {
  return tagged(0x02, bytes)
}

function sequence(...parts: readonly Buffer[]): Buffer {
  return tagged(0x30, ...parts)
}

function tagged(tag: number, ...parts: readonly Buffer[]): Buffer {
  const body = Buffer.concat(parts)
  const { length } = body
  const head =
    length < 0x80
      ? [tag, length]
      : length < 0x100
        ? [tag, 0x81, length]
        : [tag, 0x82, length >> 8, length & 0xff]
  return Buffer.concat([Buffer.from(head), body])
}

function pem(label: string, der: Buffer): string {
  const lines = der.toString('base64').match(/.{1,64}/g) ?? []
  return `-----BEGIN ${label}-----\n${lines.join('\n')}\n-----END ${label}-----\n`
}
