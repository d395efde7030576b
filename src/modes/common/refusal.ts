import type { OperationFailure } from '../../kernel/nft/client.ts'
import type { KernelRefusal } from '../../reconcile/dataplane.ts'
import { serviceOfGroup } from './element-group.ts'

/** What the kernel says when it lacks room: whichever element it stopped at is not to blame. */
const NO_ROOM: ReadonlySet<string> = new Set(['ENFILE', 'ENOMEM', 'ENOSPC', 'ENOBUFS'])

/** Of one message of a batch of nf_tables. */
export function refusalOf({ elements, ...words }: OperationFailure): KernelRefusal {
  return refusalTo(
    elements.flatMap(({ group }) => serviceOfGroup(group) ?? []),
    words,
  )
}

/** Of what serves these Services, which the error then names. */
export function refusalTo(
  suspects: readonly string[],
  { code, error }: Pick<OperationFailure, 'code' | 'error'>,
): KernelRefusal {
  if (NO_ROOM.has(code)) return { services: [], error }
  const services = new Set(suspects)
  return { services: [...services], error: services.size === 0 ? error : named(error, services) }
}

const SERVICES_NAMED_MAX = 3

function named(error: Error, services: ReadonlySet<string>): Error {
  const first = [...services].slice(0, SERVICES_NAMED_MAX).join(', ')
  const more = services.size > SERVICES_NAMED_MAX ? ` and ${services.size - SERVICES_NAMED_MAX} more` : ''
  const noun = services.size === 1 ? 'Service' : 'Services'
  return new Error(`${noun} ${first}${more}: ${error.message}`, { cause: error })
}
