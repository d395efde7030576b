import { type FlagReader, type FlagSpec, quote } from '../config/flag.ts'
import { NAMESPACE_FLAG } from './model-request.ts'
import { parsePeer, splitPort, withNamespace } from './peers.ts'

export const NAMES_IN: FlagSpec = {
  ...NAMESPACE_FLAG,
  help: 'only Services of this namespace; names without one are in it: --service NAME, svc/NAME, pod/NAME',
}

const FORMS =
  'NAMESPACE/NAME, svc/NAMESPACE/NAME, NAME.NAMESPACE.svc, or NAME in the namespace of -n or default'
/** The namespace of names without one, as for kubectl. */
const DEFAULT_NAMESPACE = 'default'

/**
 * Reads --service in all forms in which `--to` takes a Service: `namespace/name`, with `:port` if it `mayHavePort`. A name
 * alone is one of `namespace`, or of the namespace `default`.
 * Gives `namespace/` for --namespace alone, which stands for all its Services, and an empty text without both. Reports
 * errors to the reader.
 */
export function readServiceFlag(
  reader: FlagReader,
  namespace: string,
  { mayHavePort = false }: { readonly mayHavePort?: boolean } = {},
): string {
  const text = reader.text('service') ?? ''
  if (text === '') return namespace === '' ? '' : `${namespace}/`
  const { name, port, protocol } = splitPort(text)
  const peer = parsePeer(withNamespace(name, namespace === '' ? DEFAULT_NAMESPACE : namespace))
  const isWhole = protocol === undefined && (mayHavePort || !text.includes(':'))
  if (peer?.kind !== 'service' || !isWhole) {
    const forms = mayHavePort ? `${FORMS}; each may have :PORT` : FORMS
    reader.fail('--service', `${quote(text)} is not the name of a Service; give ${forms}`)
    return text
  }
  if (namespace !== '' && !peer.key.startsWith(`${namespace}/`))
    reader.fail('--service', `${quote(text)} is not in the namespace ${namespace}`)
  return port === '' ? peer.key : `${peer.key}:${port}`
}
