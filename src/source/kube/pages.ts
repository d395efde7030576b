import { WireError } from '../../wire/wire-error.ts'
import { type Failure, failureOfError } from './exchange.ts'
import type { Listing } from './intake.ts'
import type { ListMeta } from './wire/reader.ts'

interface PagesOptions {
  /** Undefined for a consistent list, in pages; else the least version, `0` for any. */
  readonly atLeast: string | undefined
  readonly openListing: () => Listing
  /** One request with these parameters; what it brings goes into the listing. */
  readonly request: (
    query: Readonly<Record<string, string>>,
    listing: Listing,
  ) => Promise<ListMeta & { readonly bytes: number }>
}

export interface WholeList {
  readonly listing: Listing
  readonly resourceVersion: string
  readonly bytes: number
}

/** Only consistent lists are paged: others are served from memory, which limits only spoil. */
const PAGE_OBJECTS = '500'
const PAGES_MAX = 10_000

/**
 * A list, page by page. When the later pages have expired before they were read, it is asked for once more in one
 * piece. Throws what `request` throws, and WireError when the pages do not end.
 */
export async function readPages(options: PagesOptions): Promise<WholeList> {
  const { atLeast } = options
  const version = atLeast === undefined ? {} : { resourceVersion: atLeast }
  const whole = await readFrom(options, atLeast === undefined ? { limit: PAGE_OBJECTS } : version)
  if ('listing' in whole) return whole
  const again = await readFrom(options, version)
  if ('listing' in again) return again
  throw again.error
}

async function readFrom(
  { openListing, request }: PagesOptions,
  first: Readonly<Record<string, string>>,
): Promise<WholeList | ExpiredPages> {
  const listing = openListing()
  const start = await request(first, listing)
  // A token stands for the version; the two exclude each other.
  const { resourceVersion: _version, ...rest } = first
  let page = start
  let bytes = start.bytes
  for (let pages = 1; page.continue !== ''; pages++) {
    if (pages === PAGES_MAX) throw new WireError(`a list of more than ${PAGES_MAX} pages`)
    try {
      page = await request({ ...rest, continue: page.continue }, listing)
    } catch (error) {
      if (isExpiry(failureOfError(error))) return { error }
      throw error
    }
    bytes += page.bytes
  }
  return { listing, resourceVersion: start.resourceVersion, bytes }
}

interface ExpiredPages {
  readonly error: unknown
}

function isExpiry({ kind }: Failure): boolean {
  return kind === 'expired'
}
