# ruff: noqa: E501 - one line holds all alternatives of one kind
"""What people write about: forty-eight topics, each with the phrases of four tones.

Phrases are ours. `{thing}` stands for one of the topic's things; a problem or a merit is a clause,
a question lacks its question mark, a request is an imperative.
"""

from dataclasses import dataclass

DESKS = ("Accounts", "Facilities", "Support", "Welfare")
"""The four labels: which desk of an organisation handles a message."""


@dataclass(frozen=True)
class Topic:
    """One thing people write about, and the desk that handles it most often.

    Attributes:
        name: Unique short name.
        sector: Kind of organisation it belongs to.
        usual_desk: Desk that most public organisations assign it to.
        staff: Who is in charge of it on the ground.
        things: What `{thing}` may stand for.
        problems: Clauses for a complaint.
        merits: Clauses for praise.
        questions: Direct questions without the mark.
        requests: Imperatives.
        circumstances: Whole neutral sentences that fit any tone.
    """

    name: str
    sector: str
    usual_desk: str
    staff: tuple[str, ...]
    things: tuple[str, ...]
    problems: tuple[str, ...]
    merits: tuple[str, ...]
    questions: tuple[str, ...]
    requests: tuple[str, ...]
    circumstances: tuple[str, ...]


def _read_topics(source: str) -> dict[str, Topic]:
    """Reads blocks of `name sector desk` and seven lines of alternatives separated by bars."""
    topics = {}
    for block in source.strip().split("\n\n"):
        head, *lines = block.splitlines()
        name, sector, desk = head.split()
        topics[name] = Topic(name, sector, desk, *(tuple(line.split("|")) for line in lines))
    return topics


TOPICS = _read_topics("""
heating housing Facilities
caretaker|plumber
radiator|boiler|heating|thermostat
the {thing} has been cold for days|the {thing} bangs all night and never gets warm|the {thing} leaks on the carpet
the {thing} was mended the same morning|the {thing} keeps the whole flat warm
how do I turn the {thing} down at night|who is allowed to adjust the {thing}
send someone to bleed the {thing}|replace the {thing} before the frost
It is freezing in the bedroom in the morning.|The flat is on the top floor.|We use blankets and a small heater.

damp housing Facilities
surveyor|caretaker
bathroom wall|bedroom ceiling|window frame|corner of the kitchen
there is black mould on the {thing}|water drips from the {thing} whenever it rains|the paint on the {thing} is peeling from the damp
the {thing} is dry again after your repair|the mould on the {thing} was treated in an hour
is the mould on the {thing} dangerous|may I paint over the {thing} myself
treat the mould on the {thing}|have a surveyor look at the {thing}
The smell of damp is in all our clothes.|We open the windows every day.|A dehumidifier runs from morning to night.

lift housing Facilities
caretaker|lift engineer
lift|goods lift|main door|entry phone
the {thing} has been out of order for two weeks|the {thing} stopped between two floors with me inside|the {thing} jams every time it rains
the {thing} was running again by noon|the new {thing} is quiet and quick
when will the {thing} be inspected again|is there a key for the {thing}
repair the {thing} this week|put a notice on the {thing}
We live on the sixth floor with a pram.|The stairs are steep and badly lit.|Several older neighbours depend on it.

laundry housing Support
caretaker|machine fitter
washing machine|tumble dryer|laundry card|laundry room
the {thing} took my money and did nothing|the {thing} left rust marks on my shirts|the {thing} has been blocked since the weekend
the {thing} is clean and always free|the {thing} was replaced overnight
how much does the {thing} cost per load|can I book the {thing} in advance
refund what I paid for the {thing}|unblock the {thing} before the weekend
My wet clothes are in a basket in the hall.|There are only two machines for forty people.|I usually wash on Sunday evening.

wifi internet Support
network engineer|technician
router|wireless network|modem|network socket
the {thing} drops the connection every evening|the {thing} is far too slow for video calls|the {thing} rejects my password
the {thing} has been fast and stable all week|the {thing} was set up in five minutes
how do I reset the {thing}|may I use my own {thing}
reset the {thing} remotely|move the {thing} closer to my desk
I need the internet for work at night.|Two laptops and a phone are connected.|The lights on the box blink orange.

outage internet Facilities
field engineer|call handler
fibre line|broadband|phone line|cable
the {thing} was down for three days|the {thing} cut out without any warning|the {thing} was damaged by your diggers
the {thing} came back within an hour|you kept us informed while the {thing} was down
when will the {thing} be restored in our street|is work on the {thing} planned this week
credit me for the days the {thing} was down|test the {thing} at our address
The whole street is offline.|I work from home and lost two days.|A mobile signal is hard to get here.

television internet Accounts
sales adviser|technician
streaming box|film package|sports channel|recorder
the {thing} froze during the final|half of the programmes vanished from the {thing}|the {thing} costs twice what was advertised
the {thing} has a crisp picture|the children love the {thing}
what is included in the {thing}|can I watch the {thing} on a tablet
remove the {thing} from my bundle|ship a second {thing} for the bedroom
The contract runs until spring.|We mostly watch cartoons and news.|The remote control is quite worn.

login internet Support
digital adviser|help line agent
app|customer portal|web account|password page
the {thing} locked me out after the update|the {thing} never sends the security code|the {thing} shows somebody else's data
the new {thing} is clear and quick|the {thing} saves me a phone call every month
how do I change my e-mail in the {thing}|why does the {thing} ask for a second code
unlock the {thing} for me|delete my old profile from the {thing}
I tried three browsers and two phones.|The error message shows a long number.|I have used it for years.

meals canteen Welfare
cook|canteen manager
canteen lunch|vegetarian dish|evening meal|soup
the {thing} was cold and badly seasoned|the {thing} ran out before one o'clock|the {thing} made two of us ill
the {thing} was fresh and full of flavour|the {thing} is the best I have eaten in years
does the {thing} contain nuts|is the {thing} served on Sunday
label the {thing} with its ingredients|keep the {thing} warm until eight
We queue for half an hour at noon.|My tray had rice, beans and a roll.|I eat there four times a week.

table canteen Support
waiter|manager
table by the window|terrace table|private room|table for ten
the {thing} was given to somebody else|the {thing} was sticky and beside the bins|we waited an hour for the {thing}
the {thing} was decorated for our anniversary|they kept the {thing} although we were late
can I reserve the {thing} for Sunday|does the {thing} have room for a pram
hold the {thing} until eight|set the {thing} for a birthday party
There were two grandparents in our party.|We came after the theatre.|The music was rather loud.

pizza canteen Support
driver|chef
pizza|garlic bread|pasta|salad
the {thing} arrived stone cold|the {thing} was burnt on one side|there was a hair in the {thing}
the {thing} had a perfect thin crust|the {thing} tasted like a holiday in Naples
is the {thing} available without gluten|do you deliver {thing} after ten
prepare thirty portions of {thing} for Friday|add more olives to the {thing}
The order came in a paper bag.|We paid in cash at the door.|The children were very hungry.

coffee canteen Facilities
barista|vending operator
coffee machine|espresso|vending machine|tea urn
the {thing} swallowed my coins|the {thing} tastes of soap|the {thing} has been empty all week
the {thing} makes a wonderful flat white|the {thing} is refilled every morning
does the {thing} take cards|who cleans the {thing}
descale the {thing}|put oat milk in the {thing}
It stands beside the main stairs.|Staff drink ten cups a day there.|I bring my own mug.

reading library Facilities
librarian|study adviser
reading room|quiet study area|group study room|desk lamp
the {thing} was too noisy to study in|the {thing} was locked although I had booked|the {thing} is dark and draughty
the {thing} is calm and bright|the {thing} stays open when I need it
how do I book the {thing}|is the {thing} open on holidays
open the {thing} earlier before the exams|put more chairs in the {thing}
I study there from eight in the morning.|The tables by the shelves are always taken.|My thesis is due soon.

loans library Accounts
librarian|desk clerk
novel|library card|atlas|audio book
I was fined for the {thing} I had returned|the {thing} I reserved went to someone else|the {thing} has pages missing
the {thing} arrived within a day|you found a rare {thing} for me
how often can I renew the {thing}|may my sister collect the {thing}
renew the {thing} for a month|cancel the fine on the {thing}
I borrow about six books a month.|The shelf mark was on the slip.|I dropped it in the night box.

printing library Support
copy desk clerk|technician
printer|scanner|copy card|colour printer
the {thing} printed blank pages and charged me|the {thing} jams on every second sheet|the {thing} has had no toner for days
the {thing} is fast and the colours are sharp|the {thing} worked straight from my phone
what does the {thing} charge per page|can I use the {thing} from home
refund the pages from the {thing}|load the {thing} with thick paper
My report has ninety pages.|It stands in the basement by the stairs.|I had a deadline at noon.

storytime library Welfare
children's librarian|volunteer
story hour|toy corner|book bus|puppet show
the {thing} was cancelled on the day|the {thing} was overcrowded and loud|the {thing} never comes to our village
the {thing} made my son laugh all afternoon|the {thing} is the highlight of our week
which ages is the {thing} for|do I need a ticket for the {thing}
hold the {thing} twice a month|add our name to the {thing} list
My daughter is four years old.|The children sat on cushions.|We walk there with the neighbours.

bus transport Support
driver|dispatcher
shuttle bus|night bus|morning bus|bus stop
the {thing} left ten minutes early|the {thing} drove past without stopping|the {thing} was so full that we had to walk
the {thing} is always on time|the driver of the {thing} waited for me
how late does the {thing} run|does the {thing} take bicycles
add a second {thing} on Mondays|put a timetable at the {thing}
I have a class at nine.|There were fifteen of us in the rain.|The next one comes in an hour.

parking transport Accounts
parking warden|attendant
parking permit|parking fine|car park|parking meter
the {thing} was charged twice|the {thing} was refused without a reason|the {thing} machine ate my ticket
the {thing} was renewed in two minutes|the {thing} is well lit and safe
how do I transfer the {thing} to another car|is the {thing} valid at weekends
cancel the {thing}|extend the {thing} until summer
My car is a small blue van.|The sign is hidden behind a tree.|I parked for twenty minutes only.

bicycle transport Facilities
bike mechanic|porter
bicycle shed|bike rack|hire bike|bike repair stand
my wheel was stolen from the {thing}|the {thing} has a broken lock|the {thing} is full of abandoned frames
the {thing} is dry and has a camera now|the {thing} saved my journey to work
who has the key to the {thing}|can I leave a cargo bike in the {thing}
clear the old frames from the {thing}|fit a light in the {thing}
I ride to work in all weather.|My bicycle is red with a basket.|The lock was cut with a saw.

train transport Accounts
conductor|ticket inspector
night train|commuter train|tram|return ticket
the {thing} was cancelled twice this week|the {thing} had no heating or toilets|the {thing} stood in a tunnel for an hour
the {thing} was on time every day|the {thing} had plenty of seats
does the {thing} stop at the airport|may I break my journey on the {thing}
refund my fare for the late {thing}|add a carriage to the {thing}
I was on my way to a funeral.|We had seats in the second coach.|My suitcase was heavy.

appointment clinic Welfare
nurse|booking clerk
check up|follow up visit|scan|blood test
the {thing} was moved four times|the {thing} was cancelled while I sat waiting|the {thing} lasted two minutes and helped nobody
the {thing} was on time and thorough|you found me an earlier {thing}
do I have to fast before the {thing}|can my partner come to the {thing}
move the {thing} to next week|send the result of the {thing} again
I have had pain in my knee since spring.|The doctor asked for it in a letter.|I take tablets for my heart.

counselling clinic Welfare
counsellor|adviser
counselling session|drop in hour|support group|advice call
the {thing} has a waiting list of three months|the {thing} was cut short|nobody answered at the {thing}
the {thing} helped me through a dark winter|the {thing} gave me hope again
is the {thing} confidential|can I change the person who leads the {thing}
offer the {thing} in the evening|find me a place in the {thing}
I sleep badly and worry about exams.|It is hard for me to ask for help.|I live alone and far from my family.

pharmacy clinic Welfare
pharmacist|nurse
prescription|inhaler|ointment|tablets
the dose of the {thing} was wrong|you ran out of the {thing} before the weekend|I am allergic to the {thing} you gave me
the {thing} was ready when I came|the {thing} cleared my rash in days
can I take the {thing} with food|does the {thing} make you sleepy
renew the {thing} for three months|deliver the {thing} to my mother
The box was sealed with blue tape.|I have asthma and hay fever.|The counter closes at six.

dental clinic Accounts
dentist|dental nurse
filling|crown|brace|tooth extraction
the {thing} fell out the same night|I was billed twice for the {thing}|the {thing} hurt for a week
the {thing} was painless|the {thing} looks completely natural
how much does the {thing} cost|will the {thing} need a second visit
check the {thing} again|write a cost plan for the {thing}
It is a molar on the left side.|I can only chew on one side.|My insurance covers half of it.

card bank Accounts
fraud adviser|cashier
debit card|credit card|travel card|cash card
the {thing} was declined at the till|somebody used my {thing} abroad|the machine swallowed my {thing}
the {thing} arrived the next morning|the fraud on my {thing} was refunded in a day
what is the daily limit on the {thing}|will the {thing} work in Japan
freeze the {thing} at once|raise the limit on the {thing}
I was in a petrol station at night.|The chip looks scratched.|I carry little cash.

transfer bank Accounts
clerk|payments adviser
transfer|standing order|wire payment|salary payment
the {thing} went to the wrong person|the {thing} has been pending for a week|the {thing} was charged a hidden fee
the {thing} arrived within seconds|the {thing} to Poland cost nothing
how long does the {thing} take|can I stop the {thing} before it leaves
trace the {thing}|repeat the {thing} every month
The rent depends on it.|The receipt shows the right number.|It was for my brother's wedding.

mortgage bank Support
loan officer|mortgage adviser
mortgage|car loan|overdraft|home loan
the rate of the {thing} rose without notice|the {thing} was rejected with no reason|nobody explained the fees of the {thing}
the {thing} was approved in two days|the {thing} has the best rate in town
can I repay the {thing} early|which papers do you need for the {thing}
extend the {thing} by one year|send a settlement figure for the {thing}
We are buying a small cottage.|Our savings are with you as well.|My salary rose in spring.

branch bank Facilities
branch manager|security guard
cash machine|branch|night safe|counter
the {thing} was closed at lunch time|the {thing} gave me torn notes|there is no ramp to the {thing}
the {thing} was reopened in our village|the staff at the {thing} know me by name
when does the {thing} open on Saturday|does the {thing} change foreign coins
keep the {thing} open|fit a ramp at the {thing}
My father walks with a frame.|The nearest other one is ten miles away.|There was a long queue behind me.

parcel shop Support
courier|warehouse clerk
parcel|package|registered letter|delivery
the {thing} was left in the rain|the {thing} never arrived|the {thing} was handed to a stranger
the {thing} came a day early|the {thing} was wrapped with great care
where is my {thing} now|can a neighbour collect the {thing}
redirect the {thing} to the front office|search for my lost {thing}
The tracking page has not changed for days.|It is a birthday gift for my sister.|I was at home all day.

clothes shop Accounts
shop assistant|stylist
jacket|winter coat|pair of boots|dress
the zip of the {thing} broke after two days|the {thing} was two sizes too small|the colour of the {thing} ran in the wash
the {thing} fits like a glove|the {thing} is warm and smart
does the {thing} come in green|is the {thing} waterproof
exchange the {thing} for a larger size|refund the {thing}
I bought it in the sale.|The label is still on the sleeve.|I wore it to a wedding.

gadget shop Support
service engineer|shop assistant
blender|smart watch|vacuum cleaner|headset
the {thing} stopped charging within a week|the {thing} makes a terrible grinding noise|the screen of the {thing} cracked on its own
the {thing} lasts for days on one charge|the {thing} is quiet and strong
how long is the warranty on the {thing}|does the {thing} work with my phone
repair the {thing} under warranty|send a spare part for the {thing}
The manual does not mention it.|I kept the box and the receipt.|My old one lasted ten years.

garden shop Facilities
nursery worker|driver
apple tree|garden shed|lawn mower|rose bush
the {thing} was delivered without its roots covered|the {thing} lost half of its parts on the way|the {thing} died within a month
the {thing} is in full bloom|the {thing} was set up by two cheerful men
how often should I water the {thing}|will the {thing} fit behind a low wall
collect the {thing} again|plant the {thing} by the fence
Our soil is heavy clay.|The gate is wide enough for a van.|We planted herbs last year.

classes gym Welfare
trainer|coach
yoga class|spinning class|swimming lesson|boxing class
the {thing} is always full when I try to book|the {thing} was led by somebody without training|the {thing} was dropped from the plan
the {thing} changed how I feel|the {thing} is fun and well taught
is the {thing} suitable for beginners|what should I bring to the {thing}
add a {thing} at lunch time|put me on the list for the {thing}
I had an operation on my back.|There were twelve of us on the mats.|I come straight from work.

pool gym Facilities
lifeguard|attendant
pool|sauna|changing room|shower
the {thing} was freezing|the {thing} was closed for the whole week|there was broken glass in the {thing}
the {thing} is spotless|we spent every morning in the {thing}
what time does the {thing} open|are children allowed in the {thing}
heat the {thing} a little more|clean the {thing} twice a day
My skin itched for hours.|We swim with the whole family.|The floor tiles are slippery.

locker gym Support
attendant|porter
locker|locker key|padlock|storage box
the {thing} was broken open|the {thing} jams and my bag is inside|the {thing} was given to another person
the {thing} is big enough for everything|you opened the {thing} in a minute
how long may I keep the {thing}|what happens if I lose the {thing}
open the {thing} for me|give me a {thing} on the ground floor
My shoes and a towel are in it.|The number on the door has worn off.|I paid a deposit for it.

membership gym Accounts
sales adviser|manager
membership|annual pass|trial month|family pass
the {thing} was renewed against my will|you still charge me for the {thing} I cancelled|the price of the {thing} doubled
the {thing} is worth every penny|freezing the {thing} was painless
can I pause the {thing} in summer|is there a student price for the {thing}
cancel the {thing} at the end of the month|add my husband to the {thing}
I moved to another town.|The contract says three months of notice.|I broke my wrist at work.

bins council Facilities
crew leader|waste officer
recycling bin|garden waste sack|bottle bank|food waste bin
the {thing} was not emptied for a month|the {thing} was thrown across the road|rats got into the {thing}
the {thing} is emptied before seven|the street is tidy since the new {thing} came
which day is the {thing} collected|what can go in the {thing}
bring a larger {thing}|collect the {thing} from behind the gate
The lid is cracked on one side.|It smells in the sun.|We sort everything with care.

noise council Welfare
night warden|noise officer
music next door|building site|party upstairs|barking dog
the {thing} keeps us awake until three|nobody came when I reported the {thing}|the {thing} starts before six in the morning
the {thing} has stopped since your visit|you dealt with the {thing} calmly and fast
whom do I call at night about the {thing}|is the {thing} allowed after ten
speak to whoever is behind the {thing}|measure the {thing} from my bedroom
I have an early shift.|The walls are thin.|I kept a diary for two weeks.

roads council Facilities
road inspector|foreman
street light|pothole|crossing|cycle path
the {thing} has been broken since spring|a child fell because of the {thing}|the {thing} floods whenever it rains
the {thing} was fixed two days after my report|the new {thing} makes the walk to school safe
who is responsible for the {thing}|when will the {thing} be finished
repair the {thing} near the school|paint the {thing} again
It is dark by four in winter.|Cars come round the corner quickly.|I sent a photograph.

tax council Accounts
tax clerk|adviser
council tax bill|rebate|rates notice|grant
the {thing} went to my old address|the {thing} is for a house twice the size|I was threatened over the {thing} I had paid
the {thing} was corrected in one call|the {thing} helped us through the winter
how do I pay the {thing} in parts|why did the {thing} go up
recalculate the {thing}|send the {thing} by e-mail
I live alone since last year.|My pension is small.|I keep all receipts in a folder.

room hotel Facilities
receptionist|housekeeper
double room|family room|suite|room with a sea view
the {thing} smelled of smoke|the {thing} was next to a noisy kitchen|the {thing} had not been cleaned
the {thing} was spotless and quiet|the {thing} had a wonderful view of the harbour
does the {thing} have a bath|can we get a cot in the {thing}
book the {thing} for another night|move us to a {thing} on a higher floor
We were on our honeymoon.|The curtains were thick and red.|We arrived late from the ferry.

booking hotel Accounts
booking agent|duty manager
reservation|weekend deal|group booking|deposit
the {thing} had vanished from the system|I was charged twice for the {thing}|the {thing} was for the wrong dates
changing the {thing} was painless|the {thing} came with a free upgrade
can I cancel the {thing} without a fee|does the {thing} include dinner
add one guest to the {thing}|send an invoice for the {thing}
There are four adults and a dog.|We booked half a year ago.|The voucher has a gold stamp.

breakfast hotel Welfare
breakfast chef|waitress
breakfast buffet|packed breakfast|fruit bar|omelette
the {thing} was over before nine|the {thing} had nothing for people with allergies|flies sat on the {thing}
the {thing} was rich and fresh|the {thing} came with warm bread and honey
until when is the {thing} served|is there soy milk at the {thing}
prepare the {thing} for six in the morning|add gluten free bread to the {thing}
My wife cannot eat dairy.|The terrace was sunny.|The plates were still warm.

checkout hotel Support
receptionist|concierge
late check out|luggage room|wake up call|airport transfer
the {thing} was denied at the last minute|the {thing} was forgotten and we missed our flight|the {thing} cost more than the night
the {thing} was offered for free|the {thing} was arranged with a smile
can I order the {thing} by phone|who looks after the {thing} at night
arrange the {thing} for tomorrow|note the {thing} on my stay
Our plane left at seven.|We had five suitcases.|The lobby was being painted.

exam school Support
examiner|exams officer
exam|resit|oral test|coursework grade
the {thing} clashed with another one|the {thing} was marked twice with different results|the room of the {thing} was changed without notice
the {thing} was fair and well run|the feedback on my {thing} was generous
when is the date of the {thing}|may I bring a calculator to the {thing}
move the {thing} by a week|mark my {thing} again
I study chemistry in the second year.|I have a doctor's note for that week.|There were sixty people in the hall.

enrolment school Welfare
tutor|registrar
language course|evening class|seminar place|timetable
the {thing} was full before booking opened|the {thing} was cancelled after I had paid|the {thing} overlaps with my job
the {thing} was easy to change|the {thing} opened a new world to me
how do I join the {thing}|is the {thing} open to guests
put me on the waiting list for the {thing}|swap my {thing} to the morning
I work three days a week.|My level is between beginner and middle.|It starts after the holidays.

fees school Accounts
finance clerk|bursar
tuition fee|rent payment|deposit|late payment charge
the {thing} was taken twice|the {thing} is higher than in my contract|the {thing} has not been returned
the {thing} was refunded in a day|you let me pay the {thing} in parts
when is the {thing} due|what does the {thing} cover
split the {thing} into three payments|send a receipt for the {thing}
My scholarship comes at the end of the month.|My parents pay from abroad.|I have the bank statement here.

certificate school Support
registrar|office clerk
certificate|transcript|student card|reference letter
my name is misspelt on the {thing}|the {thing} was sent to an old address|I have waited six weeks for the {thing}
the {thing} was ready while I waited|the {thing} got me the job
how long does the {thing} take|can you stamp a copy of the {thing}
print the {thing} again|send the {thing} to my employer
I need it for a visa.|I finished my course last summer.|The photograph is ten years old.
""")
